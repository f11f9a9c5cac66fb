package kube

import (
	"context"
	"errors"
	"fmt"
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

// inputs are the kinds that slices are made from. Slices themselves are listed when a term begins.
var inputs = []string{nodes, pods, services}

// CurrentVersions reads the current version of each kind that slices are made from, with a list of
// at most one object. If a watch does not show that version at once, and there are not too many
// objects, a list of their metadata may prove that the Handler has them all.
func (w *Watches) CurrentVersions(ctx context.Context) (Versions, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	read := make([]string, len(inputs))
	group, ctx := errgroup.WithContext(ctx)
	for i, resource := range inputs {
		group.Go(func() (err error) {
			if read[i], err = w.currentVersion(ctx, resource); err == nil {
				w.compareIfLate(ctx, w.status(resource), read[i])
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	versions := Versions{}
	for i, resource := range inputs {
		versions[resource] = read[i]
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
func (w *Watches) Await(ctx context.Context, versions Versions, late func(error)) bool {
	ticker := time.NewTicker(awaitReportPeriod)
	defer ticker.Stop()
	for _, resource := range inputs {
		status := w.status(resource)
		for reached := status.want(versions[resource]); reached != nil; reached = status.want(versions[resource]) {
			select {
			case <-ctx.Done():
				return false
			case <-reached:
			case <-ticker.C:
				late(w.lateness(versions))
			}
		}
	}
	return true
}

// lateness names the watches that have not shown the versions.
func (w *Watches) lateness(versions Versions) error {
	var problems []error
	for _, resource := range inputs {
		status := w.status(resource)
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
