package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/trivet-dev/trivet/internal/devcluster"
)

// leg is one Trivet server as a process of its own, so that its CPU time and memory are its own too.
type leg struct {
	name         string
	grpc, admin  string
	command      *exec.Cmd
	log          *os.File
	startedCPU   time.Duration
	ended        chan struct{}
	endedErr     error
	readyTimeout time.Duration
}

// startLeg starts bin/name against the cluster and waits until it is ready.
func startLeg(ctx context.Context, cluster *devcluster.Cluster, name, binDir, logDir string, args ...string) (*leg, error) {
	grpc, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(logDir, name+".log"))
	if err != nil {
		return nil, err
	}
	ca, cert, key := cluster.EtcdFiles()
	l := &leg{name: name, grpc: grpc, admin: admin, log: log, ended: make(chan struct{}), readyTimeout: 30 * time.Second}
	l.command = exec.Command(filepath.Join(binDir, name), append([]string{
		"--kubeconfig=" + cluster.Kubeconfig(), "--etcd-endpoints=" + strings.Join(cluster.EtcdEndpoints(), ","),
		"--etcd-ca-file=" + ca, "--etcd-cert-file=" + cert, "--etcd-key-file=" + key,
		"--listen=" + grpc, "--admin-listen=" + admin, "--insecure",
	}, args...)...)
	l.command.Stderr = log
	l.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := l.command.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	go func() {
		l.endedErr = l.command.Wait()
		close(l.ended)
	}()
	return l, l.awaitReady(ctx)
}

func (l *leg) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.readyTimeout)
	defer cancel()
	for {
		if request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.admin+"/readyz", nil); err != nil {
			return err
		} else if reply, err := http.DefaultClient.Do(request); err == nil {
			reply.Body.Close()
			if reply.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready; see %s", l.name, l.log.Name())
		case <-l.ended:
			return fmt.Errorf("%s ended: %w; see %s", l.name, l.endedErr, l.log.Name())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (l *leg) stop() {
	if l == nil {
		return
	}
	select {
	case <-l.ended:
	default:
		// The process may end between the look and the signal; then there is nothing to signal.
		_ = l.command.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-l.ended:
	case <-time.After(30 * time.Second):
		_ = l.command.Process.Kill()
		<-l.ended
	}
	l.log.Close()
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// cpu is the CPU time that the process has used so far, user and system.
func (l *leg) cpu() (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	// Fields are counted behind the command's name, which is in parentheses and may hold spaces.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	const ticksPerSecond = 100 // USER_HZ, the same on every Linux that Go supports
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// resident is the process's resident memory in bytes.
func (l *leg) resident() (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", l.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(content))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
