"""`cpb verify`: reads every stored file by its normal reader, and repairs nothing."""
