// Package cluster is `trivet-lab cluster`: it starts, shows, breaks and ends a cluster with real
// nodes on this machine. It needs root. docs/cluster.md has a tour.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/test/lab/nodecluster"
)

// defaultDir is on a disk, because containerd keeps images there.
const defaultDir = "/var/lib/trivet-cluster"

type options struct {
	dir, assets, binaries, image string
	certificateLifetime          time.Duration
	bare                         bool
}

// NewCommand returns `trivet-lab cluster`. Its program calls [nodecluster.RunChild] first of all.
func NewCommand() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use: "cluster", Short: "A cluster with real nodes on this machine",
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.dir, "dir", defaultDir, "Directory with everything about the cluster; down removes it.")
	up := &cobra.Command{Use: "up", Short: "Start the cluster", Args: cobra.NoArgs, RunE: func(command *cobra.Command, _ []string) error {
		return o.up(command.Context())
	}}
	up.Flags().StringVar(&o.assets, "assets", ".assets", "Directory with the static binaries of Kubernetes, etcd and containerd.")
	up.Flags().StringVar(&o.binaries, "binaries", "bin/static", "Directory with the static binaries of Trivet and pause.")
	up.Flags().StringVar(&o.image, "image", "", "Archive with image trivet:devel, instead of one made from --binaries.")
	up.Flags().DurationVar(&o.certificateLifetime, "certificate-lifetime", 0, "Lifetime of the kubelets' certificates, which are renewed; default: a day.")
	up.Flags().BoolVar(&o.bare, "bare", false, "Start a cluster with upstream's controllers and without servers and agents of Trivet, to install Trivet in.")
	root.AddCommand(up,
		o.command("down", "End the cluster and remove everything about it", 0, func(ctx context.Context, c *nodecluster.Cluster, _ []string) error {
			return c.Down(ctx)
		}),
		o.command("status", "Show nodes, Pods and addresses", 0, func(ctx context.Context, c *nodecluster.Cluster, _ []string) error {
			return printStatus(ctx, c, os.Stdout)
		}),
		o.breakCommand(),
	)
	return root
}

// command is one about an existing cluster.
func (o *options) command(use, short string, args int, do func(context.Context, *nodecluster.Cluster, []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(args), RunE: func(command *cobra.Command, args []string) error {
		c, err := nodecluster.Open(o.dir)
		if err != nil {
			return err
		}
		return do(command.Context(), c, args)
	}}
}

func (o *options) up(ctx context.Context) error {
	for _, path := range []*string{&o.dir, &o.assets, &o.binaries} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("find %s: %w", *path, err)
		}
		*path = absolute
	}
	config := nodecluster.DefaultConfig(o.dir, o.assets, o.binaries)
	config.TrivetImage, config.CertificateLifetime = o.image, o.certificateLifetime
	if o.bare {
		config.UseUpstream()
	}
	config.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	c, err := nodecluster.Start(ctx, config)
	if err != nil {
		return fmt.Errorf("%w\nThe logs are below %s; end what has started with: trivet-lab cluster down", err, o.dir)
	}
	if !o.bare {
		if err := startPage(ctx, c, filepath.Join(o.binaries, "trivet")); err != nil {
			return err
		}
	}
	return printStatus(ctx, c, os.Stdout)
}

// breakCommand lets a person see what happens.
func (o *options) breakCommand() *cobra.Command {
	root := &cobra.Command{Use: "break", Short: "Break the cluster, or repair what was broken"}
	onNode := func(use, short string, do func(context.Context, *nodecluster.Node) error) *cobra.Command {
		return o.command(use+" NODE", short, 1, func(ctx context.Context, c *nodecluster.Cluster, args []string) error {
			node, err := c.Node(args[0])
			if err != nil {
				return err
			}
			return do(ctx, node)
		})
	}
	signalled := func(use, short string, signal syscall.Signal) *cobra.Command {
		return o.command(use+" NODE PROGRAM", short, 2, func(_ context.Context, c *nodecluster.Cluster, args []string) error {
			node, err := c.Node(args[0])
			if err != nil {
				return err
			}
			return node.Signal(args[1], signal)
		})
	}
	root.AddCommand(
		onNode("power-off", "End all processes of a node at once", func(ctx context.Context, n *nodecluster.Node) error { return n.CutPower(ctx) }),
		onNode("power-on", "Start a node again", func(ctx context.Context, n *nodecluster.Node) error { return n.Boot(ctx) }),
		onNode("unplug", "Separate a node's network", func(ctx context.Context, n *nodecluster.Node) error { return n.SetLink(ctx, false) }),
		onNode("plug", "Connect a node's network again", func(ctx context.Context, n *nodecluster.Node) error { return n.SetLink(ctx, true) }),
		onNode("stop-kubelet", "End a kubelet and keep it down", func(_ context.Context, n *nodecluster.Node) error { return n.KillKubelet() }),
		onNode("start-kubelet", "Start a kubelet again", func(_ context.Context, n *nodecluster.Node) error { return n.ReleaseKubelet() }),
		signalled("kill", "End a program, such as kube-apiserver or leasesvc; the kubelet starts it again", syscall.SIGKILL),
		signalled("freeze", "Stop a program without an end", syscall.SIGSTOP),
		signalled("continue", "Continue a frozen program", syscall.SIGCONT),
	)
	return root
}
