#!/usr/bin/env bash
# Whether the broker takes a record: produces one with acks=all and waits for the acknowledgement.
set -euo pipefail
servers=$1
topic=${2:-agl-health}
tools=${KAFKA_TOOLS:-/opt/kafka/bin}
made=${TMPDIR:-/tmp}/health-topic-made
# a probe must not eat what it probes
export KAFKA_HEAP_OPTS="-Xmx64m" KAFKA_JVM_PERFORMANCE_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
if [ ! -f "$made" ]; then
    "$tools/kafka-topics.sh" --bootstrap-server "$servers" --create --if-not-exists --topic "$topic" \
        --partitions 1 --config retention.ms=3600000 --config segment.bytes=1048576
    touch "$made"
fi
"$tools/kafka-verifiable-producer.sh" --bootstrap-server "$servers" --topic "$topic" --max-messages 1 --acks -1 |
    grep -q '"name":"producer_send_success"'
