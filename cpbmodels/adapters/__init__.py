"""Other people's formats: the Hugging Face Hub and ONNX. Each imports its library when it is used."""
