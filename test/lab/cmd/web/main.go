// Command web is the program of the Pods of tests: an HTTP server on port 8080 that says the name
// of its Pod and is ready until it is told otherwise. With arguments it prints them and ends.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Println(strings.Join(os.Args[1:], " "))
		return
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	name, err := os.Hostname() // of a container: the name of its Pod
	if err != nil {
		return err
	}
	var unready atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /name", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if unready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	set := func(to bool) http.HandlerFunc {
		return func(http.ResponseWriter, *http.Request) {
			unready.Store(to)
			fmt.Println("unready:", to)
		}
	}
	mux.HandleFunc("POST /ready", set(false))
	mux.HandleFunc("POST /unready", set(true))
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	fmt.Println("listening on", server.Addr)
	select {
	case err = <-failed:
		return err
	case <-ctx.Done():
	}
	if err = server.Close(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
