// Sends records and reads them again: given.topic, given.compress, given.acks, given.count.
"use strict";

const { kafka, given, watcher, run, CompressionTypes } = require("./client");

run(async () => {
  const producer = kafka.producer();
  await producer.connect();
  const messages = [];
  for (let number = 0; number < given.count; number += 1) {
    messages.push({
      key: `key ${number}`,
      value: `value ${number} ${"x".repeat(50)}`,
      partition: 0,
      timestamp: String(1700000000000 + number),
      headers: { trace: "abc", binary: Buffer.from([0, 255]) },
    });
  }
  const compression = given.compress ? CompressionTypes.GZIP : CompressionTypes.None;
  const sent = await producer.send({ topic: given.topic, acks: given.acks, compression, messages });
  await producer.disconnect();

  const consumer = kafka.consumer({ groupId: given.group, sessionTimeout: 6000, heartbeatInterval: 500 });
  const received = [];
  const watch = watcher();
  await consumer.connect();
  await consumer.subscribe({ topics: [given.topic], fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ partition, message }) => {
      received.push({
        partition,
        offset: message.offset,
        key: message.key.toString(),
        value: message.value.toString(),
        timestamp: message.timestamp,
        headers: Object.fromEntries(
          Object.entries(message.headers).map(([name, value]) => [name, value.toString("hex")]),
        ),
      });
      watch.changed();
    },
  });
  await watch.until(() => received.length >= given.count);
  await consumer.disconnect();
  return { sent, received };
});
