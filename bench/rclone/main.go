package main

import (
	_ "github.com/rclone/rclone/backend/hdfs"
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/mount"
	_ "github.com/rclone/rclone/cmd/version"
)

func main() { cmd.Main() }
