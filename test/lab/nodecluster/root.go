package nodecluster

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mount is one in the root directory of a node.
type mount struct {
	source, target, kind string
	flags                uintptr
	readOnly             bool
}

// mountsOf returns the mounts of a node. Programs, devices and cgroups are the machine's; /etc,
// /var and all other directories are the node's own. What a reboot clears is in memory.
func mountsOf(config pid1Config, programs []string) []mount {
	mounts := []mount{
		{source: "/dev", target: "dev", flags: unix.MS_BIND | unix.MS_REC},
		{source: "/sys", target: "sys", flags: unix.MS_BIND | unix.MS_REC},
		{source: "proc", target: "proc", kind: "proc"},
		{source: "tmpfs", target: "run", kind: "tmpfs"},
		{source: "tmpfs", target: "tmp", kind: "tmpfs"},
		{source: config.Assets, target: nodeBinaries, flags: unix.MS_BIND, readOnly: true},
		{source: config.Images, target: nodeImages, flags: unix.MS_BIND, readOnly: true},
	}
	for _, dir := range programs {
		mounts = append(mounts, mount{source: dir, target: dir, flags: unix.MS_BIND, readOnly: true})
	}
	return mounts
}

// sysctls are what a kubelet sets. A node has files of its own for them, so that those of the
// machine stay as they are.
var sysctls = map[string]string{"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}

// enterRoot makes the node's root directory that of this process, which has a mount namespace of
// its own.
func enterRoot(config pid1Config) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount(config.Root, config.Root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount root directory: %w", err)
	}
	programs, err := linkPrograms(config.Root)
	if err != nil {
		return err
	}
	for _, m := range mountsOf(config, programs) {
		if err := m.apply(config.Root); err != nil {
			return err
		}
	}
	if err := os.Chdir(config.Root); err != nil {
		return fmt.Errorf("enter root directory: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change root directory: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root directory: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("enter root directory: %w", err)
	}
	if err := unix.Sethostname([]byte(config.Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return coverSysctls()
}

// linkPrograms returns the directories of programs to mount, and copies the links among them: in
// most systems /bin is a link to /usr/bin.
func linkPrograms(root string) ([]string, error) {
	var programs []string
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64"} {
		info, err := os.Lstat(dir)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeSymlink == 0 {
			programs = append(programs, dir)
			continue
		}
		target, err := os.Readlink(dir)
		if err != nil {
			return nil, fmt.Errorf("read link: %w", err)
		}
		if link := filepath.Join(root, dir); !exists(link) {
			if err := os.Symlink(target, link); err != nil {
				return nil, fmt.Errorf("copy link: %w", err)
			}
		}
	}
	return programs, nil
}

func (m mount) apply(root string) error {
	target := filepath.Join(root, m.target)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.Mount(m.source, target, m.kind, m.flags, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.source, target, err)
	}
	if !m.readOnly {
		return nil
	}
	if err := unix.Mount("", target, "", m.flags|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", target, err)
	}
	return nil
}

func coverSysctls() error {
	for name, value := range sysctls {
		file := filepath.Join("/run/sysctl", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("make directory of settings: %w", err)
		}
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			return fmt.Errorf("write setting: %w", err)
		}
		if err := unix.Mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover setting %s: %w", name, err)
		}
	}
	return nil
}
