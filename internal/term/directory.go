package term

import (
	"context"
	"log/slog"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Directory knows every member of every service of a cluster.
type Directory struct{}

// NewDirectory returns a directory; it starts nothing.
func NewDirectory(client *clientv3.Client, cluster string, logger *slog.Logger) *Directory {
	return &Directory{}
}

// Run keeps the directory until ctx ends.
func (d *Directory) Run(ctx context.Context) error { return errUnbuilt }

// Members returns the members, ordered by service and id.
func (d *Directory) Members() []Member { return nil }

// Check returns nil while the directory is in step with etcd.
func (d *Directory) Check() error { return errUnbuilt }

// Changed is closed at the next change of Members.
func (d *Directory) Changed() <-chan struct{} { return nil }
