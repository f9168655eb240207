package io.aglstream.connect;

/** The version that Connect shows of this plugin: its jar's. */
final class Version {
    static final String OF_PLUGIN = read();

    private Version() {}

    private static String read() {
        String version = Version.class.getPackage().getImplementationVersion();
        return version == null ? "unknown" : version;
    }
}
