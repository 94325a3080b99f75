from hdfscluster.cli import main

raise SystemExit(main())
