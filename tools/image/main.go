package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `Usage:
  image archive --name NAME:TAG --out FILE.tar [--entrypoint PATH] [--user UID:GID] [--roots=false] SOURCE[=PATH]...
  image build   --out DIR [--platforms linux/amd64,linux/arm64] [--version V] [--revision COMMIT] [--created SECONDS]
  image tree    --out DIR [--platform linux/amd64] [--version V]
  image export  --layout DIR --name NAME:TAG --out FILE.tar
  image load    --layout DIR --name NAME:TAG [--runtime auto|kind|docker|containerd]
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, progress io.Writer) error {
	if len(args) == 0 {
		return usageError("a command is required")
	}
	switch args[0] {
	case "archive":
		return runArchive(args[1:], progress)
	case "build":
		return runBuild(ctx, args[1:], progress)
	case "tree":
		return runTree(ctx, args[1:], progress)
	case "export":
		return runExport(args[1:], progress)
	case "load":
		return runLoad(ctx, args[1:], progress)
	}
	return usageError(fmt.Sprintf("unknown command %q", args[0]))
}

func usageError(problem string) error { return fmt.Errorf("%s\n%s", problem, usage) }
