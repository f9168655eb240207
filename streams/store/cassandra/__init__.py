"""The state store on Apache Cassandra. Needs cassandra-driver: ``pip install agl-stream[cassandra]``."""
