// Package debugbundle is `trivet debug`: an archive of what a maintainer needs to find a fault, and
// the log level of servers.
//
// The archive holds the answers of other commands, of admin servers and of kube-apiserver. Each
// source has its own limits of time and size, and a source that hangs delays no other one. A
// missing part is named with its cause. Everything is redacted before it is written.
package debugbundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/trivet-dev/trivet/internal/cli/client"
	"github.com/trivet-dev/trivet/internal/cli/exit"
	"github.com/trivet-dev/trivet/internal/cli/printer"
)

// Root makes the root command of trivet with other streams.
type Root func(printer.Streams) *cobra.Command

// NewCommand returns `trivet debug`. Its errors carry their exit code and are not printed.
func NewCommand(streams printer.Streams, root Root) *cobra.Command {
	command := &cobra.Command{
		Use:   "debug",
		Short: "Collect what finds a fault, or change the log level of servers",
		Args:  cobra.ArbitraryArgs,
		RunE:  exit.UnknownCommand,
	}
	command.AddCommand(newBundleCommand(streams, root), newLogLevelCommand(streams))
	return command
}

// bundleCommand is one run of `trivet debug bundle`.
type bundleCommand struct {
	gateway   client.Gateway
	timeout   time.Duration
	timeLimit time.Duration
	maxBytes  int64
	output    string

	streams printer.Streams
	root    Root
	given   []string // flags of the gateway, for other commands
}

func newBundleCommand(streams printer.Streams, root Root) *cobra.Command {
	c := &bundleCommand{streams: streams, root: root}
	command := &cobra.Command{
		Use:   "bundle",
		Short: "Write an archive with the state of an installation",
		Long: `Write an archive (.tar.gz) with what finds a fault: the verdict, shards, checks, findings, nodes and slices as other
commands print them; of each replica its loops, readiness, metrics, flags, goroutines and heap; and the Deployments,
Pods and Events of Trivet's namespace. manifest.json names every file, and what is missing with the cause.

Secrets are not read. Tokens, private keys, passwords and values of environment variables are replaced by REDACTED.
Names of nodes, Services and Pods, and addresses, stay: look at the archive before it leaves your organization.

Goroutines and heap need --profiling of the server, and the ClusterRole trivet-debug.

Exit codes:
  0   The archive was written; it may lack parts.
  2   The archive could not be written.
  64  The command line is wrong.`,
		Example: `  trivet debug bundle
  trivet debug bundle -o - | tar -tz`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.UsageError(fmt.Errorf("bundle takes no arguments, got %q", args))
			}
			return nil
		},
		RunE: func(command *cobra.Command, _ []string) error {
			if err := c.validate(); err != nil {
				return err
			}
			c.given = gatewayFlags(command, streams)
			return c.run(command.Context())
		},
	}
	fs := command.Flags()
	c.gateway.RegisterFlags(fs, streams.Env)
	fs.StringVarP(&c.output, "output", "o", "", "File to write; - is the standard output. Default: trivet-debug-TIME.tar.gz in this directory.")
	fs.DurationVar(&c.timeout, "timeout", 10*time.Second, "Timeout of one question.")
	fs.DurationVar(&c.timeLimit, "time-limit", time.Minute, "Time after which the archive is written with what has arrived.")
	fs.Int64Var(&c.maxBytes, "max-bytes", 64<<20, "Bytes of all files, before compression.")
	command.ValidArgsFunction = cobra.NoFileCompletions
	return command
}

func (c *bundleCommand) validate() error {
	problems := c.gateway.Validate()
	for _, bound := range []struct {
		flag  string
		value int64
	}{{"--timeout", int64(c.timeout)}, {"--time-limit", int64(c.timeLimit)}, {"--max-bytes", c.maxBytes}} {
		if bound.value <= 0 {
			problems = append(problems, fmt.Errorf("%s must be positive", bound.flag))
		}
	}
	return exit.UsageError(problems...)
}

func (c *bundleCommand) run(ctx context.Context) error {
	begun := time.Now()
	secrets := newRedactor(c.gateway.Token, c.streams.Env("TRIVET_TOKEN"))
	collected := c.collect(ctx)
	if ctx.Err() != nil {
		return client.Interrupted()
	}
	path := c.output
	if path == "" {
		path = "trivet-debug-" + begun.UTC().Format("20060102T150405Z") + ".tar.gz"
	}
	archived, err := c.write(path, func(out io.Writer) (manifest, error) {
		return writeArchive(out, begun, collected, secrets, c.maxBytes)
	})
	if err != nil {
		return client.CannotPrint("archive", err)
	}
	if path != "-" {
		_, err = fmt.Fprintln(c.streams.Out, path)
	}
	_, _ = fmt.Fprintf(c.streams.Err, "%s in %s, %d missing; manifest.json says why\n",
		printer.Count(len(archived.Files), "file"), time.Since(begun).Round(time.Millisecond), len(archived.Missing))
	if err != nil {
		return client.CannotPrint("name of the archive", err)
	}
	return nil
}

// write creates the file, which only this user can read, under its name when it is complete.
func (c *bundleCommand) write(path string, archive func(io.Writer) (manifest, error)) (manifest, error) {
	if path == "-" {
		return archive(c.streams.Out)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".trivet-debug-*")
	if err != nil {
		return manifest{}, err
	}
	archived, err := archive(file)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return manifest{}, errors.Join(err, os.Remove(file.Name()))
	}
	return archived, nil
}
