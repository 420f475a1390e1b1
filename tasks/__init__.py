"""The steps of both DAGs (`steps`, `evaluate`) and the packages that do the work; `verify` checks what is stored."""
