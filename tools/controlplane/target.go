package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"runtime"
	"strings"
)

// target is one binary to build.
type target struct {
	name    string // of the binary
	pkg     string // Go package of its main
	version string // of its module
	ldflags string
}

// targets are all binaries, by what needs them.
type targets struct {
	controlPlane []target // of a test
	rivals       []target // of measurements and conformance tests
	nodes        []target // of a cluster with real nodes, which needs rivals as well
}

// targetsOf reads the versions from the text of a go.mod.
func targetsOf(goMod string) (targets, error) {
	etcd, err := versionOf("go.etcd.io/etcd/server/v3", goMod)
	if err != nil {
		return targets{}, err
	}
	kubernetes, err := versionOf("k8s.io/kubernetes", goMod)
	if err != nil {
		return targets{}, err
	}
	stamped := "-s -w " + stampVersion(kubernetes)
	ofKubernetes := func(name string) target {
		return target{name: name, pkg: "k8s.io/kubernetes/cmd/" + name, version: kubernetes, ldflags: stamped}
	}
	return targets{
		controlPlane: []target{
			{name: "etcd", pkg: "go.etcd.io/etcd/server/v3", version: etcd, ldflags: "-s -w"},
			ofKubernetes("kube-apiserver"),
		},
		rivals: []target{ofKubernetes("kube-controller-manager")},
		nodes:  []target{ofKubernetes("kube-scheduler"), ofKubernetes("kubelet")},
	}, nil
}

// namesOf lists targets for people.
func namesOf(targets []target) string {
	names := make([]string, len(targets))
	for i, t := range targets {
		names[i] = t.name
	}
	return strings.Join(names, ", ")
}

// versionOf finds "module version" among the requirements.
func versionOf(module, goMod string) (string, error) {
	lines := bufio.NewScanner(strings.NewReader(goMod))
	for lines.Scan() {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("go.mod requires no version of %s", module)
}

// stampVersion returns linker flags that tell a Kubernetes binary its version, as upstream's build
// scripts do; unstamped, it calls itself v0.0.0 and serves another set of APIs.
func stampVersion(version string) string {
	const variables = "k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	flags := []string{"-X " + variables + "gitVersion=" + version}
	if len(parts) == 3 {
		flags = append(flags, "-X "+variables+"gitMajor="+parts[0], "-X "+variables+"gitMinor="+parts[1])
	}
	return strings.Join(flags, " ")
}

// stampOf is the whole recipe of a build. Binaries beside an equal stamp need not be built again.
func stampOf(targets []target, goMod string) string {
	var stamp strings.Builder
	for _, t := range targets {
		fmt.Fprintf(&stamp, "%s %s (go build -tags %s -ldflags %q %s)\n", t.name, t.version, buildTags, t.ldflags, t.pkg)
	}
	fmt.Fprintf(&stamp, "built by %s for %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(&stamp, "tools/controlplane/go.mod sha256:%x\n", sha256.Sum256([]byte(goMod)))
	return stamp.String()
}
