package leaseobject

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// page is how many Leases are read at a time. The kube-apiserver answers pages from its cache, and none is so large that it or
// we would feel it.
const listPageSize = 500

// List shows all Leases of a namespace to visit, page by page in the order of their names, each page as it was at the same
// moment or, when that has taken too long, later. A selector of labels may be empty. It ends early with the error of visit,
// which may keep what it is shown.
func (w *LeaseWriter) List(ctx context.Context, namespace, selector string, visit func([]coordinationv1.Lease) error) error {
	options := metav1.ListOptions{LabelSelector: selector, Limit: listPageSize}
	for {
		list, err := w.leases.Leases(namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list leases of namespace %s: %w", namespace, err)
		}
		if err := visit(list.Items); err != nil {
			return err
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}
