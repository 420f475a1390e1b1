"""The Hugging Face Hub; its library is imported when it is used."""
