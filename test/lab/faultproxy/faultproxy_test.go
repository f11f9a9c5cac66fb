package faultproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/trivet-dev/trivet/test/lab/faultproxy"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestKubeProxy_DisturbsOnlyWhatIsSelected(t *testing.T) {
	proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
	kube, err := kubernetes.NewForConfig(proxy.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	namespace := testkit.Namespace(t, kube)
	get := func(ctx context.Context) error {
		_, err := kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return err
	}

	t.Run("delay", func(t *testing.T) {
		stop := proxy.Delay(faultproxy.Resource("namespaces", "get"), 300*time.Millisecond)
		begin := time.Now()
		if err := get(t.Context()); err != nil || time.Since(begin) < 300*time.Millisecond {
			t.Fatalf("get answered after %v with %v; want an answer after 300 ms", time.Since(begin), err)
		}
		stop()
	})
	t.Run("refuse", func(t *testing.T) {
		stop := proxy.Refuse(func(r faultproxy.Request) bool { return r.Verb == "get" && r.Name == namespace }, 403, metav1.StatusReasonForbidden)
		if err := get(t.Context()); !apierrors.IsForbidden(err) {
			t.Fatalf("get = %v, want forbidden", err)
		}
		if _, err := kube.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{Limit: 1}); err != nil {
			t.Fatalf("the rule selects get; list = %v", err)
		}
		stop()
		if err := get(t.Context()); err != nil {
			t.Fatalf("after stop: %v", err)
		}
	})
	t.Run("hang", func(t *testing.T) {
		stop := proxy.Hang(faultproxy.Resource("namespaces"))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("get = %v, want no answer", err)
		}
		stop()
		if err := get(t.Context()); err != nil {
			t.Fatalf("after stop: %v", err)
		}
	})
}

func TestKubeProxy_RecordsChanges(t *testing.T) {
	proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
	changes := make(chan faultproxy.Change, 10)
	proxy.Record(func(c faultproxy.Change) { changes <- c })
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		config := proxy.RESTConfig()
		config.ContentType = contentType
		kube, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		namespace := testkit.Namespace(t, testkit.Kube(t))
		begin := time.Now()
		made, err := kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), made.Name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), made, metav1.CreateOptions{}); err == nil {
			t.Fatal("a ConfigMap with a resourceVersion was created")
		}
		got := <-changes
		if got.Request.Verb != "create" || got.Namespace != namespace || got.Name != made.Name || fmt.Sprint(got.Revision) != made.ResourceVersion ||
			got.Received.Before(begin) || got.Answered.Before(got.Received) {
			t.Errorf("%s: recorded %+v, want the creation of %s at %s", contentType, got, made.Name, made.ResourceVersion)
		}
		if len(changes) != 0 {
			t.Errorf("%s: also recorded %+v", contentType, <-changes)
		}
	}
}

func TestKubeProxy_HoldsAndDelaysEvents(t *testing.T) {
	proxy := faultproxy.NewKube(t, testkit.Cluster(t).RESTConfig())
	kube, err := kubernetes.NewForConfig(proxy.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	configMaps := kube.CoreV1().ConfigMaps(testkit.Namespace(t, kube))
	selected := faultproxy.Resource("configmaps")
	create := func(name string) {
		t.Helper()
		if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	next := func(from watch.Interface, want string) {
		t.Helper()
		for {
			select {
			case event := <-from.ResultChan():
				if object, ok := event.Object.(*corev1.ConfigMap); ok && object.Name == want {
					return
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("no event of %s", want)
			}
		}
	}
	open := func() watch.Interface {
		t.Helper()
		out, err := configMaps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(out.Stop)
		return out
	}

	first := open()
	create("before")
	next(first, "before")
	stop := proxy.HoldOpenWatches(selected)
	create("held")
	next(open(), "held")
	select {
	case event := <-first.ResultChan():
		t.Fatalf("the watch delivers %s while it is held", event.Type)
	case <-time.After(200 * time.Millisecond):
	}
	stop()
	next(first, "held")

	stop = proxy.HoldEvents(selected)
	late := open()
	create("held-too")
	select {
	case event := <-late.ResultChan():
		t.Fatalf("the new watch delivers %s while it is held", event.Type)
	case <-time.After(200 * time.Millisecond):
	}
	stop()
	next(late, "held-too")

	stop = proxy.DelayEvents(selected, 300*time.Millisecond)
	begin := time.Now()
	create("late")
	next(late, "late")
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Fatalf("the event arrived after %v, want 300 ms", took)
	}
	stop()
}

func TestRelay_DelaysBlocksAndDisconnects(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	relay := faultproxy.NewRelay(t, listener.Addr().String())
	conn, err := net.Dial("tcp", relay.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	echo := func(within time.Duration) (time.Duration, error) {
		begin := time.Now()
		if _, err := conn.Write([]byte("x")); err != nil {
			return 0, err
		}
		_ = conn.SetReadDeadline(begin.Add(within))
		_, err := conn.Read(make([]byte, 1))
		return time.Since(begin), err
	}

	relay.SetDelay(50 * time.Millisecond)
	if took, err := echo(time.Minute); err != nil || took < 100*time.Millisecond {
		t.Fatalf("the echo took %v and ended with %v; want 50 ms each way", took, err)
	}
	relay.SetDelay(0)
	stop := relay.Lose(faultproxy.Loss{Delay: 20 * time.Millisecond, Jitter: 20 * time.Millisecond, Share: 1, Least: 50 * time.Millisecond, Most: 60 * time.Millisecond})
	if took, err := echo(time.Minute); err != nil || took < 100*time.Millisecond {
		t.Fatalf("the echo took %v and ended with %v; want 50 ms at least each way, as each packet is lost once", took, err)
	}
	stop()
	stop() // does nothing
	relay.BlockToTarget(true)
	relay.BlockToTarget(true) // an overlapping fault
	relay.BlockToTarget(false)
	if _, err := echo(500 * time.Millisecond); err == nil {
		t.Fatal("the relay forwards while it is blocked")
	}
	relay.BlockToTarget(false)
	relay.BlockHalfToTarget(true)
	if _, err := echo(time.Minute); err != nil {
		t.Fatalf("the first connection while every second one is blocked: %v", err)
	}
	relay.Disconnect(true)
	if _, err := io.ReadAll(conn); err != nil && !errors.Is(err, net.ErrClosed) && !isReset(err) {
		t.Fatal(err)
	}
	relay.Disconnect(false)
	if conn, err = net.Dial("tcp", relay.Addr()); err != nil {
		t.Fatal(err)
	}
	if _, err := echo(500 * time.Millisecond); err == nil {
		t.Fatal("the relay forwards a second connection while these are blocked")
	}
	relay.BlockHalfToTarget(false)
	if _, err := echo(time.Minute); err != nil {
		t.Fatalf("after the disconnection: %v", err)
	}
}

func isReset(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed)
}
