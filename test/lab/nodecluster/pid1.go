package nodecluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// pid1Name is the first argument by which an executable knows that it is the pid 1 of a node.
const pid1Name = "trivet-node"

// pid1Config is what pid 1 of a node is told. Paths are those of the machine.
type pid1Config struct {
	Name    string
	Root    string // the node's root directory
	Assets  string // binaries
	Images  string // directory of image archives
	Cgroup  string
	Servers []netip.AddrPort // kube-apiservers behind the ClusterIP of default/kubernetes
}

// Paths within a node.
const (
	nodeBinaries   = "/opt/node/bin"
	nodeImages     = "/opt/node/images"
	nodeState      = "/var/lib/node"
	kubeletArgs    = nodeState + "/kubelet.json"
	kubeletHold    = nodeState + "/hold-kubelet"
	containerdSock = "/run/containerd/containerd.sock"
	restartDelay   = time.Second
)

// RunChild reports whether this process is the pid 1 of a node or the relay of a cluster, and runs
// it if so. It returns then only if it cannot run. A program that starts clusters calls it first of
// all, with the arguments of the process.
func RunChild(ctx context.Context, args []string) (isChild bool, err error) {
	if len(args) != 2 {
		return false, nil
	}
	switch args[0] {
	case relayName:
		return true, runRelay(ctx, args[1])
	case pid1Name:
	default:
		return false, nil
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return true, fmt.Errorf("read configuration of the node: %w", err)
	}
	var config pid1Config
	if err := json.Unmarshal(text, &config); err != nil {
		return true, fmt.Errorf("parse configuration of the node: %w", err)
	}
	if os.Getpid() != 1 {
		return true, errors.New("a node needs namespaces of its own")
	}
	return true, runPID1(ctx, config)
}

// runPID1 runs containerd and the kubelet. Whatever ends is started again.
func runPID1(ctx context.Context, config pid1Config) error {
	if err := joinCgroups(config.Cgroup+"/system", 0); err != nil {
		return err
	}
	if err := enterRoot(config); err != nil {
		return err
	}
	for key, value := range map[string]string{
		"PATH": nodeBinaries + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
	} {
		if err := os.Setenv(key, value); err != nil {
			return fmt.Errorf("set environment: %w", err)
		}
	}
	children := newReaper()
	go children.run()
	go relayAll(ctx, config.Servers)
	go children.keep("containerd", "", func() ([]string, error) {
		return []string{"--config", "/etc/containerd/config.toml"}, nil
	})
	if err := children.importImages(); err != nil {
		return err
	}
	children.keep("kubelet", kubeletHold, func() ([]string, error) {
		text, err := os.ReadFile(kubeletArgs)
		if err != nil {
			return nil, fmt.Errorf("read arguments of the kubelet: %w", err)
		}
		var args []string
		return args, json.Unmarshal(text, &args)
	})
	return nil
}

// reaper starts children and waits for all, adopted ones too, as pid 1 must.
type reaper struct {
	mu      sync.Mutex // also held while a child starts, so that it is known before it is waited for
	waiting map[int]chan syscall.WaitStatus
}

func newReaper() *reaper { return &reaper{waiting: map[int]chan syscall.WaitStatus{}} }

func (r *reaper) run() {
	for ; ; time.Sleep(20 * time.Millisecond) {
		for r.reapOne() {
		}
	}
}

func (r *reaper) reapOne() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err != nil || pid <= 0 {
		return false
	}
	if done := r.waiting[pid]; done != nil {
		delete(r.waiting, pid)
		done <- status
	}
	return true
}

// execute runs a program to its end.
func (r *reaper) execute(log, program string, args ...string) (syscall.WaitStatus, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, fmt.Errorf("open log of %s: %w", program, err)
	}
	defer output.Close()
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = output, output
	done := make(chan syscall.WaitStatus, 1)
	if err := r.start(command, done); err != nil {
		return 0, err
	}
	return <-done, nil
}

func (r *reaper) start(command *exec.Cmd, done chan syscall.WaitStatus) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", command.Path, err)
	}
	r.waiting[command.Process.Pid] = done
	return command.Process.Release()
}

// keep runs a program for ever, a second after each end. While the file hold exists, it is not
// started.
func (r *reaper) keep(program, hold string, args func() ([]string, error)) {
	for ; ; time.Sleep(restartDelay) {
		for exists(hold) {
			time.Sleep(50 * time.Millisecond)
		}
		arguments, err := args()
		if err == nil {
			var status syscall.WaitStatus
			status, err = r.execute(filepath.Join("/var/log", program+".log"), program, arguments...)
			if err == nil {
				err = fmt.Errorf("exit status %d, signal %d", status.ExitStatus(), status.Signal())
			}
		}
		fmt.Println(time.Now().Format(time.RFC3339Nano), program, "ended:", err)
	}
}

// importImages gives containerd the archives that it does not have. A mark with an archive's size
// and time says that it has it.
func (r *reaper) importImages() error {
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		status, err := r.execute("/dev/null", "ctr", "version")
		if err == nil && status.ExitStatus() == 0 {
			break
		}
		if time.Since(begin) > time.Minute {
			return errors.New("containerd does not answer within a minute")
		}
	}
	archives, err := os.ReadDir(nodeImages)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, archive := range archives {
		info, err := archive.Info()
		if err != nil {
			return fmt.Errorf("examine image: %w", err)
		}
		mark := filepath.Join(nodeState, fmt.Sprintf("imported-%s-%d-%d", archive.Name(), info.Size(), info.ModTime().UnixNano()))
		if exists(mark) {
			continue
		}
		status, err := r.execute("/var/log/images.log", "ctr", importArgs(filepath.Join(nodeImages, archive.Name()))...)
		if err != nil || status.ExitStatus() != 0 {
			return fmt.Errorf("import %s: exit status %d, %w; see images.log", archive.Name(), status.ExitStatus(), err)
		}
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			return fmt.Errorf("mark image: %w", err)
		}
	}
	return nil
}

// importArgs are those of the command ctr. The import is its own, because containerd's transfer
// service refuses archives without a platform.
func importArgs(archive string) []string {
	return []string{"--namespace", "k8s.io", "images", "import", "--local", archive}
}

// relayAll serves the ClusterIP of default/kubernetes, because no kube-proxy runs.
func relayAll(ctx context.Context, servers []netip.AddrPort) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(kubernetesIP, "443"))
	if err != nil {
		fmt.Println("no relay to kube-apiservers:", err)
		return
	}
	balancer := newBalancer(servers, new(net.Dialer).DialContext)
	go balancer.run(ctx)
	relayConnections(ctx, listener, balancer.dialReady)
}

// relayConnections connects what it accepts until the listener is closed. A peer that is slow to
// accept holds up its own connection only.
func relayConnections(ctx context.Context, listener net.Listener, dial func(context.Context) (net.Conn, error)) {
	for {
		client, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		go func() {
			defer client.Close()
			server, err := dial(ctx)
			if err != nil {
				return
			}
			defer server.Close()
			splice(client, server)
		}()
	}
}

// splice copies both ways until one side ends.
func splice(a, b net.Conn) {
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // an end of either side is the end of both
			done <- struct{}{}
		}()
	}
	<-done
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}
