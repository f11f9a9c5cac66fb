package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `Usage:
  image archive --name NAME:TAG --out FILE.tar [--entrypoint PATH] [--user UID:GID] [--roots=false] SOURCE[=PATH]...
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(_ context.Context, args []string, progress io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command\n" + usage)
	}
	switch args[0] {
	case "archive":
		return runArchive(args[1:], progress)
	}
	return fmt.Errorf("unknown command %q\n%s", args[0], usage)
}
