package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// floorVariable holds a kubeconfig path. It makes this binary run the floor: a bare client-go
// program with informers of Services, IPAddresses and ServiceCIDRs, which every comparison needs,
// but without a comparison.
const floorVariable = "TRIVET_BENCH_AUDIT_FLOOR"

// floorSynced is its output once the informers are synced.
const floorSynced = "synced"

func floorAsChild(kubeconfig string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := keepObjects(ctx, kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func keepObjects(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	factory.Core().V1().Services().Informer()
	factory.Networking().V1().IPAddresses().Informer()
	factory.Networking().V1().ServiceCIDRs().Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	fmt.Println(floorSynced)
	<-ctx.Done()
	factory.Shutdown()
	return nil
}
