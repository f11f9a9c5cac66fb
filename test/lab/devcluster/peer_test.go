package devcluster

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestPeer_ServesSharedDataUntilStoppedKilledOrFrozen(t *testing.T) {
	temp := ownTempDir(t)
	cluster := begin(t, Config{})
	peer, err := cluster.AddAPIServer(t.Context(), PeerConfig{AdvertiseAddress: "10.99.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	first := kubernetes.NewForConfigOrDie(cluster.RESTConfig())
	second := kubernetes.NewForConfigOrDie(peer.RESTConfig())
	if _, err := first.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	read := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := second.CoreV1().ConfigMaps("default").Get(ctx, "shared", metav1.GetOptions{})
		return err
	}
	eventually(t, 10*time.Second, func() error { return read(time.Second) })

	if err := peer.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := read(time.Second); err == nil {
		t.Error("a frozen kube-apiserver answers")
	}
	if err := peer.Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error { return read(time.Second) })

	peer.Kill()
	if err := read(time.Second); err == nil {
		t.Error("a killed kube-apiserver answers")
	}
	if err := peer.Freeze(); err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("freeze what is gone: %v, want an error that says so", err)
	}
	if err := cluster.Err(); err != nil {
		t.Errorf("a kill that was asked for is reported: %v", err)
	}
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", peer.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	second = kubernetes.NewForConfigOrDie(config)
	eventually(t, 10*time.Second, func() error { return read(time.Second) })

	if err := peer.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Stop(); err != nil {
		t.Fatal(err)
	}
	requireEmpty(t, temp)
	requireNoChild(t)
}

func TestPeer_RequiresAnAddress(t *testing.T) {
	cluster := begin(t, Config{EtcdOnly: true})
	if _, err := cluster.AddAPIServer(t.Context(), PeerConfig{AdvertiseAddress: "10.99.0.2"}); err == nil {
		t.Error("an etcd without a kube-apiserver has a further one")
	}
	whole := &Cluster{apiServer: &server{}}
	if _, err := whole.AddAPIServer(t.Context(), PeerConfig{AdvertiseAddress: "here"}); err == nil || !strings.Contains(err.Error(), "PeerConfig.AdvertiseAddress") {
		t.Errorf("error %v does not name PeerConfig.AdvertiseAddress", err)
	}
}
