// Package kubelet observes the kubelet of this machine from outside.
package kubelet
