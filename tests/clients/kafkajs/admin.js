// Creates, describes, alters, grows and deletes given.topic; lists and deletes given.group, which has read given.read.
"use strict";

const { kafka, given, run } = require("./client");

const TOPIC_RESOURCE = 2;

async function refusal(promise) {
  try {
    await promise;
    return null;
  } catch (error) {
    const inner = (error.errors && error.errors[0]) || (error.groups && error.groups[0].error) || error;
    return inner.type || (inner.cause && inner.cause.type) || inner.name;
  }
}

run(async () => {
  const admin = kafka.admin();
  await admin.connect();
  const topics = [
    {
      topic: given.topic,
      numPartitions: 2,
      replicationFactor: 1,
      configEntries: [{ name: "retention.ms", value: "3600000" }],
    },
  ];
  const seen = {};
  seen.created = await admin.createTopics({ topics, waitForLeaders: true });
  seen.createdAgain = await admin.createTopics({ topics });
  seen.badSetting = await refusal(
    admin.createTopics({ topics: [{ topic: given.other, configEntries: [{ name: "no.such.setting", value: "1" }] }] }),
  );
  seen.badReplicas = await refusal(admin.createTopics({ topics: [{ topic: given.other, replicationFactor: 3 }] }));
  await admin.createPartitions({ topicPartitions: [{ topic: given.topic, count: 3 }] });
  const { topics: metadata } = await admin.fetchTopicMetadata({ topics: [given.topic] });
  seen.partitions = metadata[0].partitions.map((partition) => partition.partitionId).sort();

  const resources = [{ type: TOPIC_RESOURCE, name: given.topic, configEntries: [{ name: "retention.ms", value: "5000" }] }];
  await admin.alterConfigs({ resources, validateOnly: false });
  const described = await admin.describeConfigs({
    resources: [{ type: TOPIC_RESOURCE, name: given.topic, configNames: ["retention.ms"] }],
    includeSynonyms: false,
  });
  seen.retention = described.resources[0].configEntries.map((entry) => entry.configValue);

  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic: given.topic, messages: [0, 1, 2, 3].map((number) => ({ partition: 0, value: `${number}` })) });
  await producer.disconnect();
  const offsets = async () => (await admin.fetchTopicOffsets(given.topic)).find((row) => row.partition === 0);
  seen.offsets = await offsets();
  await admin.deleteTopicRecords({ topic: given.topic, partitions: [{ partition: 0, offset: "2" }] });
  seen.afterDeletion = await offsets();

  seen.groupOffsets = (await admin.fetchOffsets({ groupId: given.group, topics: [given.read] }))[0].partitions;
  seen.listed = (await admin.listGroups()).groups.some((group) => group.groupId === given.group);
  seen.state = (await admin.describeGroups([given.group])).groups[0].state;
  seen.deletedGroup = await admin.deleteGroups([given.group]);
  seen.deletedGroupAgain = await refusal(admin.deleteGroups([given.group]));

  const cluster = await admin.describeCluster();
  seen.cluster = { brokers: cluster.brokers.length, port: cluster.brokers[0].port };
  seen.listedTopic = (await admin.listTopics()).includes(given.topic);
  await admin.deleteTopics({ topics: [given.topic] });
  await admin.disconnect();
  return seen;
});
