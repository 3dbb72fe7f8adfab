// A Pub/Sub server for tests, which keeps everything in memory: Google's own fake, pstest, on a fixed address.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	address := flag.String("listen", "127.0.0.1:0", "HOST:PORT to listen on")
	flag.Parse()
	server := pstest.NewServerWithAddress(*address)
	defer server.Close()
	fmt.Printf("listening on %s\n", server.Addr)
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGINT, syscall.SIGTERM)
	<-stopped
}
