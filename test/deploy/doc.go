// Package deploy tests the manifests in deploy/ against what they are for: a real kube-apiserver
// accepts every object, its Pod Security admission every pod, the servers every flag and variable,
// and the roles grant what the servers use and no verb more.
//
// The trees are rendered by kustomize, built from the module proxy by tools/kustomize. Nothing is
// scheduled: there is no kubelet, so images and volumes are not looked at.
package deploy
