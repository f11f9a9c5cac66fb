package agent_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

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
		Dial:    dial,
		Cluster: "kubernetes", Name: "node-agent", Version: "v1.0.0",
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

// An agent that looks at the kubelet of its Node. If the kubelet stops, the lease of the Node
// expires, although the agent still beats.
func ExampleAgent_Report() {
	holder := agent.Holder{Class: "node", Name: "node-1", BootID: "5f0c7a52-91c0-4bd2-b2ff-6a0d6a1a6a52"}
	a, err := agent.New(agent.Config{Targets: []string{"127.0.0.1:7601"}, Dial: dial, Holders: []agent.Holder{holder}})
	if err != nil {
		log.Print(err)
		return
	}
	go func() {
		for {
			if kubeletAnswers() {
				if err := a.Report(holder, agent.Report{ObservedTime: time.Now()}); err != nil {
					log.Print(err)
				}
			}
			time.Sleep(time.Second)
		}
	}()
	if err := a.Run(context.Background()); err != nil {
		log.Print(err)
	}
}

func kubeletAnswers() bool {
	response, err := http.Get("http://127.0.0.1:10248/healthz")
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

func dial(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
}
