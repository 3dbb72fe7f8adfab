import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Creates, describes, alters, grows and deletes a topic; lists, describes, alters and deletes a group. */
public final class AdminTasks {
    public static void main(String[] arguments) throws Exception {
        Client client = new Client(arguments[0]);
        String topic = arguments[1];
        String group = arguments[2];
        TopicPartition place = new TopicPartition(topic, 0);
        Map<String, Object> seen = new TreeMap<>();
        try (Admin admin = client.admin()) {
            topics(admin, topic, seen);
            // Of late: the topic is compacted, and a segment of old records would be rolled and compacted meanwhile.
            long before = System.currentTimeMillis() - 10_000;
            try (KafkaProducer<String, String> producer = client.producer(Map.of())) {
                for (long time = before + 1000; time <= before + 3000; time += 1000) {
                    producer.send(new ProducerRecord<>(topic, 0, time, "key", "value")).get();
                }
            }
            seen.put("earliest", offset(admin, place, OffsetSpec.earliest()));
            seen.put("latest", offset(admin, place, OffsetSpec.latest()));
            seen.put("maxTimestamp", offset(admin, place, OffsetSpec.maxTimestamp()));
            seen.put("atTime", offset(admin, place, OffsetSpec.forTimestamp(before + 1500)));
            seen.put("lowWatermark",
                admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(1))).lowWatermarks().get(place).get().lowWatermark());
            groups(client, admin, topic, group, seen);
            admin.deleteTopics(List.of(topic)).all().get();
            Client.eventually("the topic is gone", () -> {
                try {
                    return !admin.listTopics().names().get().contains(topic);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            });
            seen.put("deletedAgain", Client.refusal(() -> admin.deleteTopics(List.of(topic)).all().get()));
        }
        Client.tell(seen);
    }

    private static void topics(Admin admin, String topic, Map<String, Object> seen) throws Exception {
        NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000"));
        admin.createTopics(List.of(wanted)).all().get();
        seen.put("createdAgain", Client.refusal(() -> admin.createTopics(List.of(wanted)).all().get()));
        seen.put("badName", Client.refusal(() -> admin.createTopics(List.of(new NewTopic("a b", 1, (short) 1))).all().get()));
        seen.put("badReplicas",
            Client.refusal(() -> admin.createTopics(List.of(new NewTopic(topic + "x", 1, (short) 3))).all().get()));
        seen.put("badSetting", Client.refusal(() -> admin.createTopics(List.of(
            new NewTopic(topic + "x", 1, (short) 1).configs(Map.of("no.such.setting", "1")))).all().get()));
        seen.put("placedOnNobody", Client.refusal(() -> admin.createTopics(List.of(
            new NewTopic(topic + "x", Map.of(0, List.of(77))))).all().get()));
        seen.put("byDefault", partitionsOfDefaultTopic(admin, topic + "-default"));
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        seen.put("grownAgain",
            Client.refusal(() -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get()));
        Client.eventually("three partitions", () -> {
            try {
                TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
                return described.partitions().size() == 3;
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "5000000"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all().get();
        Client.eventually("the setting is seen", () -> setting(admin, resource, "retention.ms").equals("5000000"));
        seen.put("cleanupPolicy", setting(admin, resource, "cleanup.policy"));
        seen.put("badChange", Client.refusal(() -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET)))).all().get()));
        seen.put("nodes", admin.describeCluster().nodes().get().size());
        seen.put("controllerPort", admin.describeCluster().controller().get().port());
    }

    private static int partitionsOfDefaultTopic(Admin admin, String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, Optional.empty(), Optional.empty()))).all().get();
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
    }

    private static void groups(Client client, Admin admin, String topic, String group, Map<String, Object> seen)
            throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = client.consumer(group, Map.of("client.id", "the-reader"))) {
            consumer.subscribe(List.of(topic));
            Client.read(consumer, 2);
            consumer.commitSync();
            ConsumerGroupDescription described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            seen.put("state", described.groupState().toString());
            seen.put("assignor", described.partitionAssignor());
            seen.put("member", described.members().iterator().next().clientId());
            seen.put("assigned", described.members().iterator().next().assignment().topicPartitions().size());
            seen.put("deletedWithMembers", Client.refusal(() -> admin.deleteConsumerGroups(List.of(group)).all().get()));
            seen.put("offsetsDeletedWhileSubscribed",
                Client.refusal(() -> admin.deleteConsumerGroupOffsets(group, Set.of(place)).all().get()));
        }
        Set<String> listed = new TreeSet<>();
        admin.listGroups().all().get().forEach(row -> listed.add(row.groupId()));
        seen.put("listed", listed.contains(group));
        seen.put("offset", offsetOf(admin, group, place));
        admin.alterConsumerGroupOffsets(group, Map.of(place, new OffsetAndMetadata(1))).all().get();
        seen.put("alteredOffset", offsetOf(admin, group, place));
        admin.deleteConsumerGroupOffsets(group, Set.of(place)).all().get();
        seen.put("offsetIsDeleted",
            !admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().containsKey(place));
        admin.deleteConsumerGroups(List.of(group)).all().get();
        seen.put("describedAfterDeletion", Client.refusal(() -> admin.describeConsumerGroups(List.of(group)).all().get()));
    }

    private static long offsetOf(Admin admin, String group, TopicPartition place) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(place).offset();
    }

    private static long offset(Admin admin, TopicPartition place, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(place, spec)).all().get().get(place).offset();
    }

    private static String setting(Admin admin, ConfigResource resource, String name) {
        try {
            return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name).value();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
