// A Pub/Sub server for tests, which keeps everything in memory: Google's own fake, pstest, with requests as large as
// Pub/Sub takes them.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
)

const largestBytes = 20_000_000

func main() {
	address := flag.String("listen", "127.0.0.1:0", "HOST:PORT to listen on")
	flag.Parse()
	// pstest has a gRPC server of its own, on another port, whose limit of 4 MB cannot be changed.
	fake := pstest.NewServerWithAddress("127.0.0.1:0")
	defer fake.Close()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(largestBytes), grpc.MaxSendMsgSize(largestBytes))
	pubsubpb.RegisterPublisherServer(server, &fake.GServer)
	pubsubpb.RegisterSubscriberServer(server, &fake.GServer)
	fmt.Printf("listening on %s\n", listener.Addr())
	log.Fatal(server.Serve(listener))
}
