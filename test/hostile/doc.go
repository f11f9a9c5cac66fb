// Package hostile creates Kubernetes objects that a tenant or a stolen kubelet may create, beside
// the real services and a gateway, on a real control plane.
//
// For each object it checks that the slices of another namespace follow their Pods within a bound,
// that the object's own result is the documented one, and that no process panics. At the end it
// checks all answers of the gateway, the output of the command line and, in the long form, the
// page.
//
// The short form is part of `make test-system`. The long form has objects at their largest size and
// needs Chromium for the page:
//
//	make hostile
package hostile
