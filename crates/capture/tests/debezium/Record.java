// Runs Debezium's own engine with a file of settings and prints each record as one line of JSON. Started by record.py.

import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

class Record {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        try (var engine = DebeziumEngine.create(KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class))
                .using(settings)
                .using((success, message, error) -> System.err.println("ended: " + success + " " + message + " " + error))
                .notifying(record -> {
                    StringBuilder line = new StringBuilder("{\"topic\": \"" + record.destination() + "\", \"headers\": [");
                    String separator = "";
                    for (Header<?> header : record.headers()) {
                        line.append(separator).append("[\"" + header.getKey() + "\", " + header.getValue() + "]");
                        separator = ", ";
                    }
                    line.append("], \"key\": " + record.key() + ", \"value\": " + record.value() + "}");
                    synchronized (out) {
                        out.println(line.toString().replace("\n", " "));
                    }
                })
                .build()) {
            engine.run();
        }
    }
}
