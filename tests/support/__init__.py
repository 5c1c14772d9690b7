"""What the tests stand on: real wheels, a real index on loopback, real projects, real processes. No mocks."""
