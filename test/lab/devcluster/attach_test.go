package devcluster

import (
	"errors"
	"io"
	"net"
	"net/url"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
)

func TestAttach_UsesTheServersOfAnotherProcessAndLeavesThemRunning(t *testing.T) {
	owner := begin(t, Config{})
	access, err := owner.Access()
	if err != nil {
		t.Fatal(err)
	}
	released := 0
	attached, err := Attach(access, owner, func() error {
		released++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	kube := discovery.NewDiscoveryClientForConfigOrDie(attached.RESTConfig())
	if _, err := kube.ServerVersion(); err != nil {
		t.Errorf("use kube-apiserver: %v", err)
	}
	etcd, err := attached.EtcdClient()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.Put(t.Context(), "key", "value"); err != nil {
		t.Errorf("use etcd: %v", err)
	}
	if err := etcd.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := attached.ClientCertificate("a-user"); err != nil {
		t.Errorf("issue a certificate: %v", err)
	}

	before := owner.pids()
	if err := errors.Join(attached.StopEtcd(), attached.StartEtcd()); err != nil {
		t.Errorf("restart etcd: %v", err)
	}
	if after := owner.pids(); len(after) != 2 || after[0] == before[0] || after[1] != before[1] {
		t.Errorf("processes are %v after a restart of etcd, were %v", after, before)
	}
	if err := errors.Join(attached.StopAPIServer(), attached.StartAPIServer()); err != nil {
		t.Errorf("restart kube-apiserver: %v", err)
	}
	for _, refused := range []error{attached.CopyEtcd(t.TempDir() + "/copy"), attached.RestoreEtcd(t.TempDir())} {
		if !errors.Is(refused, errAttached) {
			t.Errorf("took the data of etcd: %v, want %v", refused, errAttached)
		}
	}

	server, err := url.Parse(attached.RESTConfig().Host)
	if err != nil {
		t.Fatal(err)
	}
	idle, err := net.Dial("tcp", server.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if err := errors.Join(attached.Stop(), idle.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection after Stop: %v, want its end", err)
	}
	if released != 1 {
		t.Errorf("released %d times, want once", released)
	}
	if err := errors.Join(owner.Err(), owner.creds.adminProbe.get(t.Context(), owner.apiServerURL()+"/readyz")); err != nil {
		t.Errorf("the servers do not run after Stop of an attached Cluster: %v", err)
	}
}
