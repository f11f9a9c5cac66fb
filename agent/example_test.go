package agent_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trivet-dev/trivet/agent"
)

// A node that beats until it is interrupted.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	a, err := agent.New(agent.Config{
		Targets: []string{"127.0.0.1:7601"},
		Dial: func(target string) (*grpc.ClientConn, error) {
			return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		},
		Holders: []agent.Holder{{Class: "node", Name: "node-1", BootID: "5f0c7a52-91c0-4bd2-b2ff-6a0d6a1a6a52"}},
	})
	if err != nil {
		log.Print(err)
		return
	}
	if err := a.Run(ctx); err != nil {
		log.Print(err)
	}
	fmt.Println(a.Status().LastError)
}
