# Kafka Connect with our plugin: Avro converter, JDBC rows, JSON lines (infra/connect/plugin). Build from the
# repository's root: docker build -f infra/compose/connect.Dockerfile .
FROM maven:3.9-eclipse-temurin-17 AS build
WORKDIR /source
COPY infra/connect/plugin .
RUN mvn -q -B -ntp -Dbuild.folder=/built -Dmaven.test.skip=true package

FROM apache/kafka:4.3.1
COPY --from=build /built/plugin /opt/connect-plugins/agl-stream
COPY infra/compose/connect.properties /etc/connect.properties
USER root
RUN install -d -o appuser -g appuser /exports
USER appuser
EXPOSE 8083
CMD ["/opt/kafka/bin/connect-distributed.sh", "/etc/connect.properties"]
