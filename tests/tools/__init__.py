"""What several tests share: stand-ins, servers, small homes, made-up markets. No test module imports another."""
