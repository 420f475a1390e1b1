def pytest_addoption(parser):
    parser.addoption(
        "--golden-write", action="store_true", help="write what the runs give as the golden values"
    )
