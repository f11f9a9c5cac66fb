package nodecluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// network is the set of network namespaces of a cluster: one for each node and the hub, which has
// the bridge. A file in dir holds each namespace.
type network struct{ dir string }

func (n network) file(name string) string { return filepath.Join(n.dir, name) }

// create makes the namespaces, the bridge and the links.
func (n network) create(ctx context.Context, nodes []NodeConfig) error {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return fmt.Errorf("make directory of network namespaces: %w", err)
	}
	if err := n.createNamespace(hubName); err != nil {
		return err
	}
	if err := n.ip(ctx, hubName,
		"link set lo up",
		"link add br0 type bridge",
		fmt.Sprintf("addr add %s/24 dev br0", hubAddress()),
		"link set br0 up",
	); err != nil {
		return err
	}
	for i, node := range nodes {
		if err := n.addNode(ctx, i, node.Name); err != nil {
			return err
		}
	}
	for i := range nodes {
		route := fmt.Sprintf("route add %s via %s", podCIDR(i), nodeAddress(i))
		if err := n.ip(ctx, hubName, route); err != nil {
			return err
		}
		for j, other := range nodes {
			if j == i {
				continue
			}
			if err := n.ip(ctx, other.Name, route); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n network) addNode(ctx context.Context, i int, name string) error {
	if err := n.createNamespace(name); err != nil {
		return err
	}
	if err := n.ip(ctx, hubName,
		fmt.Sprintf("link add %s type veth peer name eth0 netns %s", name, n.file(name)),
		fmt.Sprintf("link set %s master br0 up", name),
	); err != nil {
		return err
	}
	if err := n.ip(ctx, name,
		"link set lo up",
		fmt.Sprintf("addr add %s/24 dev eth0", nodeAddress(i)),
		"link set eth0 up",
		fmt.Sprintf("route add default via %s", hubAddress()),
		// The ClusterIP of default/kubernetes: a relay of the node's pid 1 listens there.
		fmt.Sprintf("addr add %s/32 dev lo", kubernetesIP),
	); err != nil {
		return err
	}
	return n.within(name, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600)
	})
}

// setLink plugs the cable of a node in or out. Without it the end of a node's processes would tell
// the peers of their connections.
func (n network) setLink(ctx context.Context, node string, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return n.ip(ctx, hubName, fmt.Sprintf("link set %s %s", node, state))
}

// removePodBridge ends what a node's former life has left in its namespace.
func (n network) removePodBridge(ctx context.Context, node string) error {
	err := n.ip(ctx, node, "link del "+podBridge)
	if err != nil && strings.Contains(err.Error(), "Cannot find device") {
		return nil
	}
	return err
}

// remove ends all namespaces, and with them their links.
func (n network) remove() error {
	entries, err := os.ReadDir(n.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list network namespaces: %w", err)
	}
	var problems []error
	for _, entry := range entries {
		file := n.file(entry.Name())
		for {
			err := unix.Unmount(file, unix.MNT_DETACH)
			if err == nil {
				continue // a second mount may lie above the first one
			}
			if !errors.Is(err, unix.EINVAL) {
				problems = append(problems, fmt.Errorf("unmount %s: %w", file, err))
			}
			break
		}
		problems = append(problems, os.Remove(file))
	}
	return errors.Join(append(problems, os.Remove(n.dir))...)
}

func (n network) createNamespace(name string) error {
	file := n.file(name)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return fmt.Errorf("make file of network namespace %s: %w", name, err)
	}
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace %s: %w", name, err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", file, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hold network namespace %s: %w", name, err)
		}
		return nil
	})
}

// ip runs lines of the command ip in a namespace.
func (n network) ip(ctx context.Context, namespace string, lines ...string) error {
	command := exec.CommandContext(ctx, "nsenter", "--net="+n.file(namespace), "ip", "-batch", "-")
	command.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("ip in namespace %s: %w: %s", namespace, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// within calls do on a thread in the namespace. What do opens stays in the namespace.
func (n network) within(namespace string, do func() error) error {
	return onThread(func() error {
		file, err := os.Open(n.file(namespace))
		if err != nil {
			return fmt.Errorf("open network namespace: %w", err)
		}
		defer file.Close()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", namespace, err)
		}
		return do()
	})
}

// dial connects from a namespace. address is numeric, because names would be resolved outside.
func (n network) dial(ctx context.Context, namespace, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial from namespace %s: %w", namespace, err)
	}
	var conn net.Conn
	err := n.within(namespace, func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
		return err
	})
	return conn, err
}

// onThread calls do on a thread of its own, which ends with it: its namespaces are not those of
// other threads.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- do()
	}()
	return <-done
}
