package main

import (
	_ "github.com/rclone/rclone/backend/hdfs"
	_ "github.com/rclone/rclone/backend/local" // of which the cache of a mount is made
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/mount"
	_ "github.com/rclone/rclone/cmd/version"
)

func main() { cmd.Main() }
