// Debezium's own engine with a file of settings and a consumer that only counts. The benchmark of the outbox starts it.
//
// It says `ready`, reads a line, and starts the engine. With a number of rows it says `first` when the first record has
// come, and when the last one has, how many seconds were between the two. Without, it says `here` for each record. It
// ends with its input.

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.DebeziumEngine.RecordCommitter;
import io.debezium.engine.format.Json;
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Properties;

class Count {
    private static long rows;
    private static long count;
    private static long begin;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        rows = Long.parseLong(arguments[1]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        var engine = DebeziumEngine.create(Json.class)
                .using(settings)
                .using((success, message, error) -> System.err.println("ended: " + message + " " + error))
                .notifying(Count::take)
                .build();
        say("ready");
        input.readLine();
        Thread thread = new Thread(engine);
        thread.setDaemon(true);
        thread.start();
        while (input.readLine() != null) {
        }
        System.exit(0);
    }

    // One offset for the whole batch: nothing else is done for a record.
    private static void take(
            List<ChangeEvent<String, String>> batch, RecordCommitter<ChangeEvent<String, String>> committer)
            throws InterruptedException {
        if (count == 0 && rows > 0) {
            begin = System.nanoTime();
            say("first");
        }
        for (ChangeEvent<String, String> event : batch) {
            if (event.value() == null) {
                continue;
            }
            count += 1;
            if (rows == 0) {
                say("here");
            } else if (count == rows) {
                say(String.valueOf((System.nanoTime() - begin) / 1e9));
            }
        }
        committer.markProcessed(batch.get(batch.size() - 1));
        committer.markBatchFinished();
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
