-- Avro maps become columns of this type.
CREATE EXTENSION IF NOT EXISTS hstore;
