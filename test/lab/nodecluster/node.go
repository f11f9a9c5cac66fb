package nodecluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Node is a machine of a cluster. Its methods are safe for use by several processes, one at a time.
type Node struct {
	Name    string
	Address netip.Addr
	PodCIDR netip.Prefix

	cluster *Cluster
	index   int
	dir     string // has root/ and the identity of pid 1
	cgroup  string
}

// RootDir is the root directory of the node, as the machine sees it. What is in memory, /run and
// /tmp, is not below it.
func (n *Node) RootDir() string { return filepath.Join(n.dir, "root") }

// LogDir has containerd.log, kubelet.log and the logs of Pods.
func (n *Node) LogDir() string { return filepath.Join(n.RootDir(), "var/log") }

// ManifestDir is the kubelet's folder of static Pods.
func (n *Node) ManifestDir() string { return filepath.Join(n.RootDir(), "etc/kubernetes/manifests") }

// Boot starts a node that is down. It does not wait for its kubelet.
func (n *Node) Boot(ctx context.Context) error {
	if n.Running() {
		return fmt.Errorf("node %s runs already", n.Name)
	}
	if err := n.clean(ctx); err != nil {
		return err
	}
	text, err := json.Marshal(pid1Config{
		Name: n.Name, Root: n.RootDir(), Assets: n.cluster.config.Assets, Images: n.imagesDir(), Cgroup: n.cgroup,
		Servers: n.cluster.apiServers(),
	})
	if err != nil {
		return fmt.Errorf("encode configuration of node %s: %w", n.Name, err)
	}
	config := filepath.Join(n.dir, "pid1.json")
	if err := writeFile(config, text, 0o600); err != nil {
		return err
	}
	output, err := os.OpenFile(filepath.Join(n.dir, "pid1.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of node %s: %w", n.Name, err)
	}
	defer output.Close()
	command := exec.Command("/proc/self/exe")
	command.Args = []string{pid1Name, config}
	command.Dir = "/"
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC, Setsid: true,
	}
	// A child is in the network namespace of the thread that starts it.
	if err := n.cluster.network.within(n.Name, command.Start); err != nil {
		return fmt.Errorf("start node %s: %w", n.Name, err)
	}
	go func() { _ = command.Wait() }() // so that it is no zombie while this process lives
	if err := writePID(n.pidFile(), command.Process.Pid); err != nil {
		return errors.Join(err, command.Process.Kill())
	}
	return n.cluster.network.setLink(ctx, n.Name, true)
}

// CutPower ends all processes of the node at once. Its link goes first, so that no peer hears of
// it. Disks stay; Boot starts the node again.
func (n *Node) CutPower(ctx context.Context) error {
	return errors.Join(n.SetLink(ctx, false), n.kill(ctx), n.clean(ctx))
}

// SetLink connects the node's network with the others' or separates it.
func (n *Node) SetLink(ctx context.Context, up bool) error {
	return n.cluster.network.setLink(ctx, n.Name, up)
}

// Running reports whether the node has power.
func (n *Node) Running() bool {
	_, running := readPID(n.pidFile())
	return running
}

// kill ends pid 1, and with it all processes of the node, and waits for their end.
func (n *Node) kill(ctx context.Context) error {
	if pid, running := readPID(n.pidFile()); running {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end node %s: %w", n.Name, err)
		}
	}
	return poll(ctx, 30*time.Second, func() error {
		if n.Running() {
			return fmt.Errorf("pid 1 of node %s has not ended", n.Name)
		}
		left, err := processesIn(n.cgroup)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, p := range left {
			_ = syscall.Kill(p.PID, syscall.SIGKILL) // asked for again until it is gone
		}
		return fmt.Errorf("%d processes of node %s have not ended", len(left), n.Name)
	})
}

// clean removes what a life of the node leaves outside of its directory.
func (n *Node) clean(ctx context.Context) error {
	return errors.Join(
		removeCgroups(n.cgroup),
		n.cluster.network.removePodBridge(ctx, n.Name),
		remove(n.pidFile()),
	)
}

// Signal sends a signal to all processes of a program on the node, in containers too: SIGKILL ends
// them, SIGSTOP freezes them, SIGCONT continues them. No such process is an error.
func (n *Node) Signal(program string, signal syscall.Signal) error {
	processes, err := n.Processes(program)
	if err != nil {
		return err
	}
	if len(processes) == 0 {
		return fmt.Errorf("no %s runs on node %s", program, n.Name)
	}
	var problems []error
	for _, pid := range processes {
		problems = append(problems, syscall.Kill(pid, signal))
	}
	return errors.Join(problems...)
}

// Cgroup is the name of the node's cgroup in every hierarchy.
func (n *Node) Cgroup() string { return n.cgroup }

// Processes returns the processes of a program on the node, as the machine numbers them; without a
// program, all.
func (n *Node) Processes(program string) ([]int, error) {
	all, err := processesIn(n.cgroup)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, p := range all {
		if program == "" || p.Program == program {
			found = append(found, p.PID)
		}
	}
	return found, nil
}

// KillKubelet ends the kubelet and keeps it down until ReleaseKubelet. Containers go on.
func (n *Node) KillKubelet() error {
	if err := writeFile(filepath.Join(n.RootDir(), kubeletHold), nil, 0o600); err != nil {
		return err
	}
	return n.RestartKubelet()
}

// ReleaseKubelet lets a killed kubelet start again.
func (n *Node) ReleaseKubelet() error { return remove(filepath.Join(n.RootDir(), kubeletHold)) }

// RestartKubelet ends the kubelet, which starts again after a second. Without one it does nothing.
func (n *Node) RestartKubelet() error {
	pids, err := n.Processes("kubelet")
	if err != nil || len(pids) == 0 {
		return err
	}
	return n.Signal("kubelet", syscall.SIGKILL)
}

// Command returns a command in the namespaces of the node, which has the machine's programs and
// those of the cluster.
func (n *Node) Command(ctx context.Context, program string, args ...string) (*exec.Cmd, error) {
	pid, running := readPID(n.pidFile())
	if !running {
		return nil, fmt.Errorf("node %s does not run", n.Name)
	}
	within := append([]string{"--target", strconv.Itoa(pid), "--mount", "--pid", "--net", "--uts", "--ipc", "--", program}, args...)
	command := exec.CommandContext(ctx, "nsenter", within...)
	command.Env = []string{"PATH=" + nodeBinaries + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	return command, nil
}

// LoadImage gives an image archive to the node's containerd.
func (n *Node) LoadImage(ctx context.Context, archive string) error {
	content, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer content.Close()
	command, err := n.Command(ctx, "ctr", importArgs("-")...)
	if err != nil {
		return err
	}
	command.Stdin = content
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("import %s on node %s: %w: %s", archive, n.Name, err, bytes.TrimSpace(output))
	}
	return nil
}

// SetServerImage changes the image of a static Pod, which the kubelet then replaces. The containers
// of Trivet's servers and of the agent have one image each.
func (n *Node) SetServerImage(pod, image string) error {
	file := filepath.Join(n.ManifestDir(), pod+".yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if before, _, found := strings.Cut(line, "image: "); found && strings.TrimLeft(before, " -") == "" {
			lines[i] = before + "image: " + image
		}
	}
	return replaceFile(file, []byte(strings.Join(lines, "\n")))
}

// Pod returns the manifest of a static Pod; SetPod writes one, and RemovePod removes it.
func (n *Node) Pod(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(n.ManifestDir(), name+".yaml"))
}

// SetPod adds or replaces a static Pod.
func (n *Node) SetPod(name string, manifest []byte) error {
	return replaceFile(filepath.Join(n.ManifestDir(), name+".yaml"), manifest)
}

// RemovePod removes the manifest of a static Pod, so that the kubelet stops it in good order.
func (n *Node) RemovePod(name string) error {
	return os.Remove(filepath.Join(n.ManifestDir(), name+".yaml"))
}

func (n *Node) pidFile() string   { return filepath.Join(n.dir, "pid") }
func (n *Node) imagesDir() string { return filepath.Join(n.dir, "images") }

// replaceFile changes a file at once. The new one is written outside of the directory, where the
// kubelet would read it.
func replaceFile(file string, content []byte) error {
	partial := filepath.Join(filepath.Dir(filepath.Dir(file)), "."+filepath.Base(file))
	if err := os.WriteFile(partial, content, 0o600); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return os.Rename(partial, file)
}

// writePID records a process with its start time, so that a later process with its number is not
// taken for it.
func writePID(file string, pid int) error {
	started, err := startTime(pid)
	if err != nil {
		return err
	}
	return writeFile(file, fmt.Appendf(nil, "%d %s\n", pid, started), 0o600)
}

func readPID(file string) (pid int, running bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	number, started, found := strings.Cut(strings.TrimSpace(string(text)), " ")
	pid, err = strconv.Atoi(number)
	if err != nil || !found {
		return 0, false
	}
	now, err := startTime(pid)
	return pid, err == nil && now == started
}

var errZombie = errors.New("process has ended")

// startTime returns the start time of a process in the kernel's own unit.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("examine process: %w", err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const state, started = 0, 19
	if len(fields) <= started {
		return "", errZombie
	}
	if slices.Contains([]string{"Z", "X"}, fields[state]) {
		return "", errZombie
	}
	return fields[started], nil
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// poll calls check until it returns nil, and returns its last error after timeout.
func poll(ctx context.Context, timeout time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited until the end: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
