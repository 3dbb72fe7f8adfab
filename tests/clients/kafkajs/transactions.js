// Commits and aborts transactions, with the offsets of given.group on given.source among them.
"use strict";

const { kafka, given, watcher, run } = require("./client");

async function read(topic, readUncommitted, count) {
  const consumer = kafka.consumer({ groupId: `${given.group}-${readUncommitted}`, sessionTimeout: 6000, readUncommitted });
  const watch = watcher();
  const values = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => {
      values.push(message.value.toString());
      watch.changed();
    },
  });
  await watch.until(() => values.length >= count);
  await consumer.disconnect();
  return values;
}

run(async () => {
  const producer = kafka.producer({ transactionalId: given.transactionalId, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  for (const [value, end] of [
    ["aborted", "abort"],
    ["committed", "commit"],
  ]) {
    const transaction = await producer.transaction();
    await transaction.send({ topic: given.topic, acks: -1, messages: [{ partition: 0, value }] });
    const offset = end === "commit" ? "7" : "3";
    const topics = [{ topic: given.source, partitions: [{ partition: 0, offset }] }];
    await transaction.sendOffsets({ consumerGroupId: given.group, topics });
    await transaction[end]();
  }

  const rival = kafka.producer({ transactionalId: given.transactionalId, maxInFlightRequests: 1, idempotent: true });
  await rival.connect();
  await (await rival.transaction()).abort();
  let fenced = null;
  try {
    const transaction = await producer.transaction();
    await transaction.send({ topic: given.topic, acks: -1, messages: [{ partition: 0, value: "zombie" }] });
    await transaction.commit();
  } catch (error) {
    fenced = error.type || error.name;
  }
  await rival.disconnect();
  await producer.disconnect();

  const admin = kafka.admin();
  await admin.connect();
  const [{ partitions }] = await admin.fetchOffsets({ groupId: given.group, topics: [given.source] });
  await admin.disconnect();
  return {
    committed: await read(given.topic, false, 1),
    everything: await read(given.topic, true, 2),
    offset: partitions[0].offset,
    fenced,
  };
});
