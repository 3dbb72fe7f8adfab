// Two members of a group share given.topic; one leaves; another continues behind what was committed.
"use strict";

const { kafka, given, watcher, run } = require("./client");

run(async () => {
  const watch = watcher();

  async function join(name) {
    const member = { name, partitions: [], received: [] };
    const consumer = kafka.consumer({
      groupId: given.group,
      sessionTimeout: 6000,
      heartbeatInterval: 200,
      rebalanceTimeout: 5000,
      maxWaitTimeInMs: 100,
    });
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      member.partitions = (payload.memberAssignment[given.topic] || []).slice().sort();
      watch.changed();
    });
    await consumer.connect();
    await consumer.subscribe({ topics: [given.topic], fromBeginning: true });
    await consumer.run({
      eachMessage: async ({ partition, message }) => {
        member.received.push([partition, message.value.toString()]);
        watch.changed();
      },
    });
    member.leave = () => consumer.disconnect();
    return member;
  }

  const first = await join("first");
  await watch.until(() => first.partitions.length === 4);
  const second = await join("second");
  await watch.until(() => first.partitions.length === 2 && second.partitions.length === 2);
  const shared = [first.partitions, second.partitions];

  const producer = kafka.producer();
  await producer.connect();
  const messages = [0, 1, 2, 3].map((partition) => ({ partition, value: `to ${partition}` }));
  await producer.send({ topic: given.topic, messages });
  await watch.until(() => first.received.length + second.received.length === 4);
  const received = [...first.received, ...second.received].sort();

  await second.leave();
  await watch.until(() => first.partitions.length === 4);
  await first.leave();

  await producer.send({ topic: given.topic, messages: [{ partition: 0, value: "later" }] });
  await producer.disconnect();
  const third = await join("third");
  await watch.until(() => third.received.length === 1);
  await third.leave();
  return { shared, received, third: third.received };
});
