package nodecluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// relayName is the first argument by which an executable knows that it is the relay of a cluster.
const relayName = "trivet-relay"

// Relays are addresses on 127.0.0.1 that lead into a cluster.
type Relays struct {
	APIServer string // of all kube-apiservers; a ready one answers
	Gateway   string // gRPC
	Page      string // HTTPS, with client certificates
}

// Relays returns the addresses that the relay of a cluster listens on.
func (c *Cluster) Relays() (Relays, error) {
	var relays Relays
	text, err := os.ReadFile(filepath.Join(c.config.Dir, "relays.json"))
	if err != nil {
		return relays, fmt.Errorf("read addresses of the relay: %w", err)
	}
	return relays, json.Unmarshal(text, &relays)
}

// startRelay starts the relay as a process of its own, which outlives this one, and writes the
// administrator's kubeconfig for it.
func (c *Cluster) startRelay(ctx context.Context) error {
	output, err := os.Create(filepath.Join(c.config.Dir, "relay.log"))
	if err != nil {
		return fmt.Errorf("open log of the relay: %w", err)
	}
	defer output.Close()
	command := exec.Command("/proc/self/exe")
	command.Args = []string{relayName, c.config.Dir}
	command.Dir = "/"
	command.Stdout, command.Stderr = output, output
	if err := c.StartCompanion("relay", command); err != nil {
		return err
	}
	var relays Relays
	if err := poll(ctx, 30*time.Second, func() (err error) {
		relays, err = c.Relays()
		return err
	}); err != nil {
		return err
	}
	return c.pki.equipAdmin(c.Kubeconfig(), "https://"+relays.APIServer)
}

// StartCompanion starts a process that lives until Down, also if this process ends.
func (c *Cluster) StartCompanion(name string, command *exec.Cmd) error {
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := writePID(filepath.Join(c.config.Dir, name+".pid"), command.Process.Pid); err != nil {
		return errors.Join(err, command.Process.Kill(), command.Wait())
	}
	go func() { _ = command.Wait() }() // so that it is no zombie while this process lives
	return nil
}

// runRelay serves until it is killed.
func runRelay(ctx context.Context, dir string) error {
	c, err := Open(dir)
	if err != nil {
		return err
	}
	listen := func(dial func(context.Context) (net.Conn, error)) (string, error) {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return "", fmt.Errorf("listen on loopback: %w", err)
		}
		go relayConnections(ctx, listener, dial)
		return listener.Addr().String(), nil
	}
	to := func(port uint16) func(context.Context) (net.Conn, error) {
		address := netip.AddrPortFrom(nodeAddress(0), port).String()
		return func(ctx context.Context) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return c.DialContext(ctx, "tcp", address)
		}
	}
	servers := newBalancer(c.apiServers(), c.DialContext)
	go servers.run(ctx)
	var relays Relays
	for into, dial := range map[*string]func(context.Context) (net.Conn, error){
		&relays.APIServer: servers.dialReady, &relays.Gateway: to(7600), &relays.Page: to(7680),
	} {
		if *into, err = listen(dial); err != nil {
			return err
		}
	}
	text, err := json.Marshal(relays)
	if err != nil {
		return fmt.Errorf("encode addresses: %w", err)
	}
	partial := filepath.Join(dir, "relays.partial")
	if err := errors.Join(writeFile(partial, text, 0o600), os.Rename(partial, filepath.Join(dir, "relays.json"))); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

const (
	dialTimeout   = 2 * time.Second
	probeInterval = time.Second
	probeTimeout  = 2 * time.Second
)

// balancer knows which kube-apiservers are ready.
type balancer struct {
	servers []netip.AddrPort
	ready   []atomic.Bool
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	next    atomic.Uint32
}

func newBalancer(servers []netip.AddrPort, dial func(context.Context, string, string) (net.Conn, error)) *balancer {
	return &balancer{servers: servers, ready: make([]atomic.Bool, len(servers)), dial: dial}
}

// run asks each server for /readyz, which needs no credentials. Nothing is sent to it but this
// question, so its certificate need not be verified.
func (b *balancer) run(ctx context.Context) {
	var probes sync.WaitGroup
	for i, server := range b.servers {
		probes.Go(func() {
			client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{
				DialContext: b.dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			}}
			for ctx.Err() == nil {
				b.ready[i].Store(answers(ctx, client, server))
				time.Sleep(probeInterval)
			}
		})
	}
	probes.Wait()
}

func answers(ctx context.Context, client *http.Client, server netip.AddrPort) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server.String()+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
	return err == nil && response.StatusCode == http.StatusOK
}

// dialReady connects to the ready servers in turn, and to any if none is ready.
func (b *balancer) dialReady(ctx context.Context) (net.Conn, error) {
	first := int(b.next.Add(1))
	var problems []error
	for _, ready := range []bool{true, false} {
		for i := range b.servers {
			i = (first + i) % len(b.servers)
			if b.ready[i].Load() != ready {
				continue
			}
			dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
			conn, err := b.dial(dialCtx, "tcp", b.servers[i].String())
			cancel()
			if err == nil {
				return conn, nil
			}
			problems = append(problems, err)
		}
	}
	return nil, errors.Join(problems...)
}
