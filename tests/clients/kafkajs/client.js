// kafkajs as the tests use it. Each script gets its arguments as JSON, does its work against a real broker and prints
// what it saw as JSON; what must be seen is up to the test that runs it.
"use strict";

const { Kafka, logLevel, CompressionTypes } = require("kafkajs");

const given = JSON.parse(process.argv[2]);

const kafka = new Kafka({
  clientId: "kafkajs-test",
  brokers: [given.bootstrap],
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, retries: 8 },
});

// Resolves once `condition` holds; it is asked after every change that somebody reports with `changed`.
function watcher() {
  let waiting = [];
  return {
    changed() {
      waiting = waiting.filter(({ condition, resolve }) => !condition() || resolve());
    },
    until(condition) {
      return new Promise((resolve) => (condition() ? resolve() : waiting.push({ condition, resolve })));
    },
  };
}

function run(script) {
  script().then(
    (seen) => {
      console.log(JSON.stringify(seen));
      process.exit(0);
    },
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

module.exports = { kafka, given, watcher, run, CompressionTypes };
