package devcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/trivet-dev/trivet/test/lab/childprocess"
)

var errAttached = errors.New("another process has started this control plane: use devcluster.Start")

// KillEtcdMember ends one member of etcd like a crash and returns when the process has ended.
// StartEtcd starts it again with its data. It is idempotent.
func (c *Cluster) KillEtcdMember(number int) {
	if c.attached != nil {
		panic(errAttached)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.etcd[number].kill()
}

// CopyEtcd copies the data of all members to a new directory, as of one moment: no member runs
// while it is copied, and none notices it.
func (c *Cluster) CopyEtcd(to string) (err error) {
	if c.attached != nil {
		return errAttached
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var frozen []*childprocess.Child
	defer func() {
		for _, child := range frozen {
			err = errors.Join(err, child.Thaw())
		}
	}()
	for _, s := range c.etcd {
		if s.child == nil {
			continue
		}
		if err := s.child.Freeze(); err != nil {
			return fmt.Errorf("freeze %s: %w", s.name, err)
		}
		frozen = append(frozen, s.child)
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return fmt.Errorf("copy the data of etcd: %w", err)
	}
	copied, err := os.OpenRoot(to)
	if err != nil {
		return fmt.Errorf("copy the data of etcd: %w", err)
	}
	defer func() { _ = copied.Close() }()
	for _, s := range c.etcd {
		if err := copyData(filepath.Join(c.creds.dir, s.name), copied, s.name); err != nil {
			return err
		}
	}
	return nil
}

// copyData copies a data directory. etcd insists on directories that only its user can open.
func copyData(from string, to *os.Root, name string) error {
	if err := os.CopyFS(to.Name()+string(os.PathSeparator)+name, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy the data of etcd: %w", err)
	}
	for _, dir := range []string{name, name + "/member", name + "/member/snap", name + "/member/wal"} {
		if err := to.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("copy the data of etcd: %w", err)
		}
	}
	return nil
}

// RestoreEtcd kills all members, gives them the data that CopyEtcd has copied, and returns when
// they are ready. What etcd was told since then is lost, and its revisions go back.
func (c *Cluster) RestoreEtcd(from string) error {
	if err := c.replaceData(from); err != nil {
		return err
	}
	return c.StartEtcd()
}

func (c *Cluster) replaceData(from string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attached != nil {
		return errAttached
	}
	if c.stopped {
		return fmt.Errorf("restore etcd: %w", errStopped)
	}
	data, err := os.OpenRoot(c.creds.dir)
	if err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	defer func() { _ = data.Close() }()
	for _, s := range c.etcd {
		s.kill()
	}
	for _, s := range c.etcd {
		if err := data.RemoveAll(s.name); err != nil {
			return fmt.Errorf("restore etcd: %w", err)
		}
		if err := copyData(from+string(os.PathSeparator)+s.name, data, s.name); err != nil {
			return err
		}
	}
	return nil
}
