// kafkajs beside our clients: node kafkajs.cjs FOLDER BROKERS produce|consume COUNT. Prints one line of JSON.
const [folder, brokers, what, count] = process.argv.slice(2);
const { Kafka, logLevel } = require(`${folder}/node_modules/kafkajs`);
const kafka = new Kafka({ brokers: [brokers], logLevel: logLevel.ERROR });

async function produce() {
  const producer = kafka.producer();
  await producer.connect();
  const messages = Array.from({ length: Number(count) }, (_, n) => ({ key: `key-${n}`, value: "kafkajs" }));
  await producer.send({ topic: "placed", messages });
  await producer.disconnect();
  return messages.length;
}

async function consume() {
  const consumer = kafka.consumer({ groupId: "g" });
  await consumer.connect();
  await consumer.subscribe({ topics: ["orders"], fromBeginning: true });
  const values = [];
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer
      .run({
        eachMessage: async ({ message }) => {
          values.push(message.value.toString());
          if (values.length === Number(count)) setTimeout(resolve, 300); // More would be too many.
        },
      })
      .catch(reject);
  });
  await consumer.disconnect();
  return values;
}

(what === "produce" ? produce() : consume())
  .then((result) => console.log(JSON.stringify(result)))
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
