// The snapshotter under containerd's own tests of snapshotters. Each case gets a process and a folder of its own.
package conformance

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	api "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/proxy"
	"github.com/containerd/containerd/v2/core/snapshots/testsuite"
	_ "github.com/containerd/containerd/v2/pkg/testutil" // has the flag -test.root
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// SNAPSHOTTER is the command that serves, as a JSON list of words.
func TestSnapshotter(t *testing.T) {
	var command []string
	if err := json.Unmarshal([]byte(os.Getenv("SNAPSHOTTER")), &command); err != nil {
		t.Fatal(err)
	}
	// The suite knows by the name what overlayfs cannot do: without redirect_dir no directory of a lower layer is renamed.
	testsuite.SnapshotterSuite(t, "overlayfs", func(_ context.Context, root string) (snapshots.Snapshotter, func() error, error) {
		socket := filepath.Join(root, "socket")
		arguments := append(command[1:len(command):len(command)], "--socket", socket, "--root", root)
		server := exec.Command(command[0], arguments...)
		server.Stdout, server.Stderr = os.Stderr, os.Stderr
		if err := server.Start(); err != nil {
			return nil, nil, err
		}
		end := func() error {
			if err := server.Process.Signal(syscall.SIGTERM); err != nil {
				return err
			}
			return server.Wait()
		}
		connection, err := grpc.NewClient("unix:"+socket,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
		if err != nil {
			_ = end()
			return nil, nil, err
		}
		return proxy.NewSnapshotter(api.NewSnapshotsClient(connection), "imagefs"), func() error {
			_ = connection.Close()
			return end()
		}, nil
	})
}
