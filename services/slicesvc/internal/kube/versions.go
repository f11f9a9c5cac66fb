package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// compareTimeout bounds a list that may prove a cache current. The watch may be faster.
	compareTimeout = 2 * time.Second
	// awaitReportPeriod is how often Await reports a late watch.
	awaitReportPeriod = 3 * time.Second
	// maxCompared is how many objects of a kind are listed at most to prove that the cache has
	// them. With more objects, a quiet kind costs a term about a second, until a bookmark comes.
	maxCompared = 20_000
)

// Versions are resourceVersions that the cluster had at one moment, by the resource of the kind.
type Versions map[string]string

// Inputs are the watches of the kinds that some slices are made from. Slices themselves are listed
// when a term begins.
type Inputs struct {
	watches   *Watches
	resources []string
}

// Inputs are the watches that the slices of Services with a selector are made from.
func (w *Watches) Inputs() *Inputs {
	return &Inputs{watches: w, resources: []string{nodes, pods, services}}
}

// ComparedInputs are the watches that slices are made from and the watch of slices, for a
// comparison outside of a term.
func (w *Watches) ComparedInputs(of *Inputs) *Inputs {
	return &Inputs{watches: w, resources: append(slices.Clone(of.resources), sliceResource)}
}

// MirrorInputs are the watches that mirrored slices are made from.
func (w *Watches) MirrorInputs() *Inputs {
	return &Inputs{watches: w, resources: []string{endpoints, services}}
}

// CurrentVersions reads the current version of each kind, with a list of at most one object. If a
// watch does not show that version at once, and there are not too many objects, a list of their
// metadata may prove that the Handler has them all.
func (i *Inputs) CurrentVersions(ctx context.Context) (Versions, error) {
	w := i.watches
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	read := make([]string, len(i.resources))
	group, ctx := errgroup.WithContext(ctx)
	for place, resource := range i.resources {
		group.Go(func() (err error) {
			if read[place], err = w.currentVersion(ctx, resource); err == nil {
				w.compareIfLate(ctx, w.status(resource), read[place])
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	versions := Versions{}
	for place, resource := range i.resources {
		versions[resource] = read[place]
	}
	return versions, nil
}

// currentVersion lists the objects of one name. Without a resourceVersion kube-apiserver answers
// from the newest state of its store, and its watches of the kind progress to that state.
func (w *Watches) currentVersion(ctx context.Context, resource string) (string, error) {
	selector := "metadata.name=none"
	if resource != nodes {
		selector += ",metadata.namespace=" + metav1.NamespaceDefault
	}
	list, err := w.client.ListMetadata(ctx, resource, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return "", fmt.Errorf("read the current version of %s: %w", resource, err)
	}
	return list.ResourceVersion, nil
}

// compareIfLate gives the watch a moment to show a version. Then it compares the known objects with
// a list. If that fails or shows a difference, the watch must show the version.
func (w *Watches) compareIfLate(ctx context.Context, status *kindStatus, version string) {
	reached := status.want(version)
	if reached == nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-reached:
		return
	case <-time.After(lateAfter / 2):
	}
	if status.known.size() > maxCompared {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	list, err := w.client.ListMetadata(ctx, status.resource, metav1.ListOptions{})
	if err == nil && status.known.coverList(list) {
		status.prove(list.ResourceVersion)
	}
}

// Await blocks until the Handler has everything up to the versions, and returns false if ctx ends
// first. Every 3 s it reports which watches are late. A watch that stays late is reopened.
func (i *Inputs) Await(ctx context.Context, versions Versions, late func(error)) bool {
	ticker := time.NewTicker(awaitReportPeriod)
	defer ticker.Stop()
	for _, resource := range i.resources {
		status := i.watches.status(resource)
		for reached := status.want(versions[resource]); reached != nil; reached = status.want(versions[resource]) {
			select {
			case <-ctx.Done():
				return false
			case <-reached:
			case <-ticker.C:
				late(i.lateness(versions))
			}
		}
	}
	return true
}

// lateness names the watches that have not shown the versions.
func (i *Inputs) lateness(versions Versions) error {
	var problems []error
	for _, resource := range i.resources {
		status := i.watches.status(resource)
		if status.want(versions[resource]) == nil {
			continue
		}
		now := status.snapshot()
		problem := fmt.Errorf("watch of %s is late: version %s is needed, %s was shown %v ago",
			resource, versions[resource], now.ResourceVersion, time.Since(now.Heard).Round(time.Second))
		if now.Failure != nil {
			problem = fmt.Errorf("%w: %w", problem, now.Failure)
		}
		problems = append(problems, problem)
	}
	return errors.Join(problems...)
}

func (w *Watches) status(resource string) *kindStatus {
	for _, status := range w.kinds {
		if status.resource == resource {
			return status
		}
	}
	return nil
}
